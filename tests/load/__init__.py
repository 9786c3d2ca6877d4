"""Much at once, and for long: connections, batches, applications, participants."""
