"""The databases under the decision log and the participants: SQLite and PostgreSQL."""
