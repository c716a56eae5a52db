"""Critics: what states are worth. Needs torch; `calibration` needs numpy only."""
