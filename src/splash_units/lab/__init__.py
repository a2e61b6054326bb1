"""The lab: the study of the SPLASH paper, as something a user can run."""
