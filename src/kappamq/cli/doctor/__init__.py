"""`kappamq doctor`: checks of the machine, the cluster and Spark, each with what to do about it."""
