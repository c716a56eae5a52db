"""The video world model as a place to act in: its data, its folder, and how it is judged."""
