"""The Grafana dashboards of deploy/grafana, each a table of panels."""
