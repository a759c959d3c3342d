"""New connections from their accept to their first frame, and their end at shutdown; no request, no process."""
