"""What several suites share: worlds, servers, waits. Holds no tests."""
