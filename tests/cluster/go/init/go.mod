module modelweights.io/tests/cluster/init

go 1.24.0
