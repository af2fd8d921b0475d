package backend

import (
	"floodgate.internal/backend/command"
	"floodgate.internal/shared/conf"
)

type schemaCommand struct {
	Comments string `placeholder:"FILE" help:"A configuration file whose comments become the descriptions, like configs/backend.yaml."`
}

// Run prints the schema.
func (c *schemaCommand) Run(env *command.Env) error {
	return conf.WriteSchema(env.Stdout, "Configuration of Floodgate's backend", DefaultConfig(), c.Comments)
}
