"""Our tasks: one file each."""
