"""Help about algorithms, by worker; shown beside forms and by the command line."""
