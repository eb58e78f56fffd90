"""The explorer: a web application of local pages with the results of runs."""
