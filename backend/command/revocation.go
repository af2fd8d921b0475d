package command

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"time"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/revocation"
	"floodgate.internal/shared/cli"
)

// Revocation is the command "revocation".
type Revocation struct {
	List   revocationList   `cmd:"" help:"Which tokens are revoked, newest first."`
	Add    revocationAdd    `cmd:"" help:"Revoke a token, or a user's tokens that were issued before a time."`
	Remove revocationRemove `cmd:"" help:"Take a revocation back: tokens that have not expired are good again."`
}

// revoked says whose tokens are meant.
type revoked struct {
	JTI string `name:"jti" help:"The id of one token (its claim jti)." placeholder:"ID" xor:"whose" required:""`
	UID string `name:"uid" help:"The user whose tokens are meant." xor:"whose" required:""`
}

// members are the two as a request has them.
func (r revoked) members() (jti, uid *string) {
	if r.JTI != "" {
		return &r.JTI, nil
	}
	return nil, &r.UID
}

func printRevocations(w *bytes.Buffer, list []revocation.Entry) {
	listed(w, row{"ID", "KIND", "WHOSE", "ISSUED BEFORE", "UNTIL", "MADE"}, list, func(e revocation.Entry) row {
		kind, whose, before := "jti", e.JTI, "-"
		if e.Before != nil {
			kind, whose, before = "uid", e.UID, e.Before.Format(time.RFC3339)
		}
		return row{e.ID, kind, whose, before, e.Until.Format(time.RFC3339), e.MadeAt.Format(time.RFC3339)}
	})
}

func printRevocation(w *bytes.Buffer, e revocation.Entry) {
	printRevocations(w, []revocation.Entry{e})
}

type revocationList struct {
	JTI   string `name:"jti" help:"Only that of this token." placeholder:"ID" xor:"whose"`
	UID   string `name:"uid" help:"Only that of this user." xor:"whose"`
	Limit int    `default:"100" help:"How many, 1 to 1000."`
	API
}

func (c *revocationList) Run(ctx context.Context, env *Env) error {
	query := url.Values{}
	switch {
	case c.JTI != "":
		query.Set("jti", c.JTI)
	case c.UID != "":
		query.Set("uid", c.UID)
	case c.Limit < 1:
		return cli.Usage("--limit %d: must be positive", c.Limit)
	}
	if len(query) == 0 {
		return ask(ctx, env, c.API, get("/revocations?limit=%d", c.Limit), func(w *bytes.Buffer, list adminapi.Revocations) {
			env.more(list.Page)
			printRevocations(w, list.Revocations)
		})
	}
	return ask(ctx, env, c.API, get("/revocations?%s", query.Encode()), func(w *bytes.Buffer, list adminapi.Revocations) {
		printRevocations(w, list.Revocations)
	})
}

type revocationAdd struct {
	revoked
	Before string `help:"Of a user: only tokens that were issued before: RFC 3339, now, or a time ago: -1h. Absent: now." placeholder:"TIME"`
	Key    string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

func (c *revocationAdd) Run(ctx context.Context, env *Env) error {
	if c.Before != "" && c.JTI != "" {
		return cli.Usage("--before goes with --uid; a jti is one token")
	}
	return c.with(env, func(api *adminapi.Client) error {
		var in adminapi.NewRevocation
		in.JTI, in.UID = c.members()
		if c.Before != "" {
			at, err := when("--before", c.Before, func() (time.Time, error) { return api.Now(ctx) })
			if err != nil {
				return err
			}
			in.Before = &at
		}
		return tell(ctx, env, api, c.Output, post(c.Key, in, "/revocations"), printRevocation)
	})
}

type revocationRemove struct {
	revoked
	Key string `help:"Idempotency-Key: run again with the same one, the first answer comes back."`
	API
}

func (c *revocationRemove) Run(ctx context.Context, env *Env) error {
	var in adminapi.OldRevocation
	in.JTI, in.UID = c.members()
	return ask(ctx, env, c.API, request{http.MethodDelete, "/revocations", c.Key, in}, printRevocation)
}
