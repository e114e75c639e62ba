"""The web dashboard over saved runs; it reads reports, starts jobs and computes nothing itself."""
