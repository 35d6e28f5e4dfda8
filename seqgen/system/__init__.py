"""What the operating system gives: files, processes, signals, memory and devices; and the checks of class bodies."""
