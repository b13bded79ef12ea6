package gatetest

import (
	"slices"
	"testing"

	"github.com/sandbed/sandbed/bench/gate"
)

func TestGate(t *testing.T) {
	n := 0
	for r := range All(Real()) {
		n++
		for _, f := range r.Faults {
			t.Errorf("%s (%s): %s", r.Name, r.What, f)
		}
	}
	if n < 40 {
		t.Errorf("%d streams and cases, want at least 40", n)
	}
}

// altered is a gate that sees other launches than there are.
func altered(edit func([]gate.Launch) []gate.Launch) Gate {
	g := Real()
	decide := g.Decide
	g.Decide = func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
		return decide(d, edit(slices.Clone(l)), o)
	}
	return g
}

// designed is a gate that judges by another design.
func designed(edit func(*gate.Design)) Gate {
	return Gate{
		func(d gate.Design, l []gate.Launch) (gate.Step, error) { edit(&d); return d.Next(l) },
		func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
			edit(&d)
			return gate.Decide(d, l, o)
		},
	}
}

// reported is a gate whose report is changed.
func reported(edit func(*gate.Report)) Gate {
	g := Real()
	decide := g.Decide
	g.Decide = func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
		r, err := decide(d, l, o)
		edit(&r)
		return r, err
	}
	return g
}

// each edits the launches of one control.
func each(kind string, edit func(*gate.Launch)) func([]gate.Launch) []gate.Launch {
	return func(l []gate.Launch) []gate.Launch {
		for i := range l {
			if l[i].Control == kind {
				edit(&l[i])
			}
		}
		return l
	}
}

// TestFaultyGatesAreFound: a suite that passes these shows nothing.
func TestFaultyGatesAreFound(t *testing.T) {
	for _, c := range []struct {
		name, finder string // what must find it
		gate         Gate
	}{
		{"always green", "one slower", reported(func(r *gate.Report) { r.Exit, r.Verdict = 0, "ok" })},
		{"always red", "nothing slower", reported(func(r *gate.Report) { r.Exit, r.Verdict = 1, "regression" })},
		{"null control ignored", "null control fired", altered(each(gate.Null, func(l *gate.Launch) {
			l.Value = 0.02 + 1e-6*float64(l.Round%7)
			if l.Arm == gate.Base {
				l.Value += 1e-7
			}
		}))},
		{"injected control ignored", "injection missed", altered(each(gate.Injected, func(l *gate.Launch) {
			if l.Arm == gate.Injected {
				l.Value = 1
			}
		}))},
		{"direction reversed", "one slower", altered(func(l []gate.Launch) []gate.Launch {
			for i := range l {
				if l[i].Control == "" {
					l[i].Better = map[string]string{"lower": "higher", "higher": "lower"}[l[i].Better]
				}
			}
			return l
		})},
		{"higher is better ignored", "higher is better -11 %", altered(func(l []gate.Launch) []gate.Launch {
			for i := range l {
				l[i].Better = "lower"
			}
			return l
		})},
		{"confirmation taken from the screen", "not confirmed", altered(func(l []gate.Launch) []gate.Launch {
			l = slices.DeleteFunc(l, func(l gate.Launch) bool { return l.Stage == gate.Confirm })
			for _, one := range l {
				if one.Control == "" && one.Lane == gate.Time {
					one.Stage = gate.Confirm
					l = append(l, one)
				}
			}
			return l
		})},
		{"failures dropped", "failed launch", altered(func(l []gate.Launch) []gate.Launch {
			return slices.DeleteFunc(l, func(l gate.Launch) bool { return l.Failed != "" })
		})},
		{"a level ten times as high", "limits", designed(func(d *gate.Design) { d.FamilyAlpha = min(0.2, 10*d.FamilyAlpha) })},
		{"judged after every round", "between looks", designed(func(d *gate.Design) {
			last := d.Looks[len(d.Looks)-1]
			d.Looks = nil
			for n := 1; n <= last; n++ {
				d.Looks = append(d.Looks, n)
			}
		})},
		{"no margin", "at the margin", designed(func(d *gate.Design) {
			d.Gated = slices.Clone(d.Gated)
			for i := range d.Gated {
				d.Gated[i].Theta = 1e-6
			}
		})},
		{"no exact limit", "exact lane", designed(func(d *gate.Design) { d.ExactLimit = 0.5 })},
		{"waivers for ever", "waiver", Gate{gate.Design.Next, func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
			o.Today = epoch
			return gate.Decide(d, l, o)
		}}},
		{"fitness ignored", "unfit machine", Gate{gate.Design.Next, func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
			o.Fitness = nil
			return gate.Decide(d, l, o)
		}}},
		{"strict ignored", "strict", Gate{gate.Design.Next, func(d gate.Design, l []gate.Launch, o gate.Options) (gate.Report, error) {
			o.Strict = false
			return gate.Decide(d, l, o)
		}}},
		{"stops at the first look", "can fire", Gate{func(d gate.Design, l []gate.Launch) (gate.Step, error) {
			s, err := d.Next(l)
			s.Done = s.Done || s.Rounds > d.Looks[0]
			return s, err
		}, gate.Decide}},
	} {
		r, ok := byName(c.gate, c.finder)
		switch {
		case !ok:
			t.Errorf("%s: there is no %q", c.name, c.finder)
		case r.Pass():
			t.Errorf("%s: %q found nothing", c.name, c.finder)
		default:
			t.Logf("%s: %s", c.name, r.Faults[0])
		}
	}
}

func byName(g Gate, name string) (Result, bool) {
	for _, c := range cases() {
		if c.name == name {
			return c.test(g), true
		}
	}
	for _, s := range streams() {
		if s.name == name {
			return s.test(g), true
		}
	}
	return Result{}, false
}
