"""The participant's durable memory: tables, SQL and both databases."""
