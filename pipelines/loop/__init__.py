"""From what was served and what users did to a log: the served log, feedback, and their attribution."""
