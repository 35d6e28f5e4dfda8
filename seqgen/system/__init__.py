"""Files, processes, signals, memory and devices; and the contract with the classes of users."""
