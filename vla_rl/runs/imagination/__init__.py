"""World models inside a run: their data, their training, their use and their judgement."""
