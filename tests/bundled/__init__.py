"""The bundled dashboards and alerts: their names, their tools, and real backends."""
