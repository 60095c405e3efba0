"""What `qd doctor` looks at: each file yields findings about one part of a set-up. doctor.py calls them and prints."""
