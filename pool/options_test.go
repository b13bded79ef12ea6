package pool_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/engine"
	"github.com/sandbed/sandbed/pool"
	"github.com/sandbed/sandbed/pool/pooltest"
)

func TestDefaultOptions(t *testing.T) {
	got := pool.DefaultOptions()
	want := pool.Options{
		Count:           runtime.GOMAXPROCS(0),
		ColdStart:       10 * time.Second,
		StartupLiveness: 10 * time.Second,
		HardKillGrace:   2 * time.Second,
		KillWait:        100 * time.Millisecond,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

// optionFields lists the fields that err complains of.
func optionFields(t *testing.T, err error) (fields []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for _, err := range errs {
		var o *pool.OptionError
		if !errors.As(err, &o) {
			t.Fatalf("%v is no OptionError", err)
		}
		text := err.Error()
		if !strings.Contains(text, "Options."+o.Field) || !strings.Contains(text, fmt.Sprint(o.Value)) || o.Allowed == "" {
			t.Errorf("%q does not name field, value and what is allowed", text)
		}
		fields = append(fields, o.Field)
	}
	return fields
}

func TestOptionsValidate(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		set  func(*pool.Options)
		want string
	}{
		{func(o *pool.Options) {}, ""},
		{func(o *pool.Options) { o.Count = -1 }, "Count"},
		{func(o *pool.Options) { o.Count = 0 }, ""},
		{func(o *pool.Options) { o.Count = 1024 }, ""},
		{func(o *pool.Options) { o.Count = 1025 }, "Count"},
		{func(o *pool.Options) { o.Spare = -1 }, "Spare"},
		{func(o *pool.Options) { o.Spare = 1024 }, ""},
		{func(o *pool.Options) { o.Spare = 1025 }, "Spare"},
		{func(o *pool.Options) { o.MaxQueue = -1 }, "MaxQueue"},
		{func(o *pool.Options) { o.MaxQueue = 1 }, ""},
		{func(o *pool.Options) { o.ColdStart = -1 }, "ColdStart"},
		{func(o *pool.Options) { o.ColdStart = 0 }, "ColdStart"},
		{func(o *pool.Options) { o.ColdStart = 1 }, ""},
		{func(o *pool.Options) { o.ColdStart = day }, ""},
		{func(o *pool.Options) { o.ColdStart = day + 1 }, "ColdStart"},
		{func(o *pool.Options) { o.StartupLiveness = -1 }, "StartupLiveness"},
		{func(o *pool.Options) { o.StartupLiveness = 0 }, ""},
		{func(o *pool.Options) { o.StartupLiveness = day + 1 }, "StartupLiveness"},
		{func(o *pool.Options) { o.HardKillGrace = -1 }, "HardKillGrace"},
		{func(o *pool.Options) { o.HardKillGrace = 0 }, ""},
		{func(o *pool.Options) { o.HardKillGrace = day + 1 }, "HardKillGrace"},
		{func(o *pool.Options) { o.KillWait = -1 }, "KillWait"},
		{func(o *pool.Options) { o.KillWait = 0 }, ""},
		{func(o *pool.Options) { o.KillWait = day + 1 }, "KillWait"},
		// Every fault at once.
		{func(o *pool.Options) { *o = pool.Options{Count: -1, Spare: -1, MaxQueue: -1, HardKillGrace: -1} },
			"Count Spare MaxQueue ColdStart HardKillGrace"},
	} {
		o := pool.DefaultOptions()
		c.set(&o)
		if got := strings.Join(optionFields(t, o.Validate()), " "); got != c.want {
			t.Errorf("%+v: got faults in %q, want %q", o, got, c.want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	newVM := pooltest.NewVM(nil)
	o := pool.DefaultOptions()
	o.Count = 0
	o.ColdStart = 0
	_, err := pool.New(newVM, o)
	var option *pool.OptionError
	if !errors.As(err, &option) || !strings.Contains(err.Error(), "Options.Count = 0") || !strings.Contains(err.Error(), "Options.ColdStart = 0s") {
		t.Errorf("Count 0 and ColdStart 0: got %v, want both named", err)
	}
	o = pool.DefaultOptions()
	o.RequireHardening = true
	if _, err := pool.New(newVM, o); !errors.As(err, &option) || option.Field != "RequireHardening" {
		t.Errorf("RequireHardening: got %v", err)
	}
	if _, err := pool.New(nil, pool.DefaultOptions()); err == nil {
		t.Error("a nil newVM was accepted")
	}
}

func TestFor(t *testing.T) {
	inProcess := backend{}
	newVM := pooltest.NewVM(nil)
	o := pool.DefaultOptions()
	o.Count = 0
	if b, err := pool.For(inProcess, newVM, o); err != nil || b != engine.Backend(inProcess) {
		t.Errorf("Count 0: got %v, %v, want the in-process backend", b, err)
	}
	if _, err := pool.For(nil, newVM, o); err == nil {
		t.Error("Count 0 without an in-process backend was accepted")
	}
	o.KillWait = -1
	if _, err := pool.For(inProcess, newVM, o); err == nil {
		t.Error("a fault beside Count 0 was accepted")
	}
	o = pool.DefaultOptions()
	o.Count = 1
	b, err := pool.For(inProcess, newVM, o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, ok := b.(*pool.Pool); !ok {
		t.Errorf("Count 1: got %T, want a pool", b)
	}
	o.Count = -1
	if b, err := pool.For(inProcess, newVM, o); err == nil || b != nil {
		t.Errorf("Count -1: got %v, %v, want nil and an error", b, err)
	}
}

type backend struct{}

func (backend) Run(context.Context, engine.Request) (engine.Outcome, error) {
	return engine.Outcome{}, nil
}
func (backend) Warm(context.Context) error { return nil }
func (backend) Close() error               { return nil }
