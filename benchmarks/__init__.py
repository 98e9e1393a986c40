"""Measures jiyi and its peers on one machine, on the same documents and questions; `make bench` runs all of it."""
