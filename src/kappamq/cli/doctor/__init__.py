"""`kappamq doctor`: checks of the machine, the cluster and Spark, each with advice."""
