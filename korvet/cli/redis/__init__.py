"""Redis without a front-end: connections, checks and repairs; nothing of users and rules."""
