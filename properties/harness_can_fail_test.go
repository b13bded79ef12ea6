package properties

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/commands"
	"github.com/leanovate/gopter/gen"

	fuzzgen "github.com/sandbed/sandbed/fuzz/gen"
)

// A case that fails is found, made smaller, and told with its reason; a search for a
// smaller one that finds none ends.
func TestHarnessCanFail(t *testing.T) {
	p := gopter.DefaultTestParametersWithSeed(7)
	r := forAll(gen.SliceOf(gen.UInt8()), func(b []byte) error {
		for _, v := range b {
			if v > 200 {
				return errors.New("a number above 200")
			}
		}
		return nil
	}).Check(p)
	if r.Passed() || !strings.Contains(details(r), "a number above 200") {
		t.Fatalf("got %s\n%s", r.Status, details(r))
	}
	if got := fmt.Sprint(r.Args[0].Arg); got != "[201]" {
		t.Errorf("the case was made smaller to %s, want [201]", got)
	}
	tries := 0
	r = forAll(gen.SliceOf(gen.UInt8()), func(b []byte) error {
		tries++
		return errors.New("always")
	}).Check(p)
	if r.Passed() || tries > maxShrinks+1 {
		t.Errorf("got %s after %d tries, want a failure after at most %d", r.Status, tries, maxShrinks+1)
	}
}

// What is wrong at the end of a history counts, and so does a model that knows better.
func TestHistoriesCanFail(t *testing.T) {
	p := gopter.DefaultTestParametersWithSeed(7)
	p.MaxSize = 20
	r := inBubbles(t, poolCommands(), func(sut commands.SystemUnderTest) error {
		if err := sut.(*plant).end(); err != nil {
			return err
		}
		return errors.New("something is left")
	}).Check(p)
	if r.Passed() || !strings.Contains(details(r), "something is left") {
		t.Errorf("got %s\n%s", r.Status, details(r))
	}
	m := poolModel{count: 1, killWait: 2 * fuzzgen.Unit}
	m.do(fuzzgen.Op{Name: "run/slow"})
	if err := bubble(t, func() error {
		sut, err := newPlant(nil, listOptions(1, 0, 2*fuzzgen.Unit))
		if err != nil {
			return err
		}
		c := poolCommand{fuzzgen.Op{Name: "run/ok"}} // which answers at once
		c.Run(sut)
		return errors.Join(m.compare(sut), sut.end())
	}); err == nil {
		t.Error("the model took one run for another")
	}
}
