"""The shell around the decisions: feeds them what was heard, stores what they say, carries out what they order."""
