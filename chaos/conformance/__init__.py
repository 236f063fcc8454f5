"""What a system is expected to do, as data, beside what it was measured to do."""
