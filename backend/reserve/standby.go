package reserve

import (
	"context"
	"fmt"
	"strconv"

	"floodgate.internal/lua"
)

// LookStandby says whether a buyer may join the standby line of a sale, and changes nothing. The answer is lua.Joinable,
// Available (something is to be had, and nobody waits), AlreadyOrdered, NotStarted, Ended or Paused, with what Reserve gives.
// Errors: ErrNotLoaded, ErrGateClosed.
func (s *Store) LookStandby(ctx context.Context, sale int64, uid string) (Verdict, error) {
	reply, err := s.client.Call(ctx, lua.SaleStandby, []string{s.state(sale), s.buyers(sale)}, lua.StepLook, uid)
	if err != nil {
		return Verdict{}, fmt.Errorf("the standby line of sale %d: %w", sale, err)
	}
	v := Verdict{Answer: reply.Answer()}
	switch v.Answer {
	case lua.NotLoaded:
		return v, ErrNotLoaded
	case lua.GateClosed:
		return v, ErrGateClosed
	case lua.AlreadyOrdered:
		v.OrderID = reply.Text(1)
	case lua.NotStarted:
		v.StartsAt = reply.Int(1)
	}
	return v, nil
}

// Wait notes that somebody waits in the standby line of a sale, and place as the newest place there, unless a newer one is
// known. From here on Reserve keeps what is available for the line. ErrNotLoaded: whoever loads the sale reads it from MySQL.
func (s *Store) Wait(ctx context.Context, sale, place int64) error {
	return s.note(ctx, sale, lua.StepWait, place)
}

// Rest notes that nobody waits any more, unless somebody came after place, the newest that was known (State.Standby) before
// MySQL was asked.
func (s *Store) Rest(ctx context.Context, sale, place int64) error {
	return s.note(ctx, sale, lua.StepRest, place)
}

func (s *Store) note(ctx context.Context, sale int64, step string, place int64) error {
	reply, err := s.client.Call(ctx, lua.SaleStandby, []string{s.state(sale), s.buyers(sale)}, step, strconv.FormatInt(place, 10))
	if err != nil {
		return fmt.Errorf("the standby line of sale %d, %s %d: %w", sale, step, place, err)
	}
	if reply.Answer() == lua.NotLoaded {
		return ErrNotLoaded
	}
	return nil
}
