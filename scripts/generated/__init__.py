"""The pages and dashboards that are written from the code. A test compares them with it."""
