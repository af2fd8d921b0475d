module floodgate.internal/lua

go 1.26.0

require github.com/redis/rueidis v1.0.79

require (
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
