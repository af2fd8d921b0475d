package gateway

import (
	"io"

	"floodgate.internal/shared/conf"
)

type schemaCommand struct {
	Comments string `placeholder:"FILE" help:"A configuration file whose comments become the descriptions, like configs/gateway.yaml."`
}

func (c schemaCommand) run(stdout io.Writer) error {
	return conf.WriteSchema(stdout, "Configuration of Floodgate's gateway", DefaultConfig(), c.Comments)
}
