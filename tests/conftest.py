from hypothesis import settings

# A busy machine makes single examples slow; what a test may take as a whole is pytest's to say.
settings.register_profile("repo", deadline=None)
settings.load_profile("repo")
