"""Our tasks, each with its scripted expert: one file each."""
