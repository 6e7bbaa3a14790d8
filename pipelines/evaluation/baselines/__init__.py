"""Simple models that a ranker has to beat: fitted on the training split, compared under the same bootstrap draws."""
