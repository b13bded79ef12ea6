package enginetest

import "slices"

// Guarantee is one promise to a user, with what shows it: laws by name and cases
// by group.
type Guarantee struct {
	Name         string
	Laws, Groups []string
}

var guarantees = []Guarantee{
	{"It stops", []string{"stops", "returns", "runaway-loop", "wall-clock", "cancel", "late-cancel", "seeding"},
		[]string{"cpu-noloop", "cpu-slowpoll", "cpu-loop"}},
	{"It fits", []string{"fits", "allocation-bomb", "stack-overflow", "output-cap", "refused-input"},
		[]string{"alloc", "stack", "input"}},
	{"It says why", []string{"suite", "class", "value", "sound", "hooks", "panics", "metering", "forged-guards", "honest-guards", "caught-guards", "results", "modules", "promises", "messages", "fuel-limit", "shape-mismatch", "erased-script", "fault"},
		[]string{"result", "async", "syntax", "engine-bug", "shared"}},
	{"It leaves nothing", []string{"clean", "image", "isolation", "determinism", "fuel-same", "fuel-monotone", "no-ambient-io", "leaks", "close"},
		[]string{"isolation", "determinism", "escape"}},
	{"It does not disturb", []string{"concurrent"}, nil},
}

// Guarantees lists the guarantees in the order users ask for them. Every law and
// every group of [Cases] is under exactly one.
func Guarantees() []Guarantee { return slices.Clone(guarantees) }

// Score is how much of a guarantee was seen to hold.
type Score struct {
	Cases, Passed, Exact   int // cases of the corpus
	Laws, Held, NotOffered int // laws; those not offered are not in Laws
}

// Score counts the cases and laws of r that show g. cases is the corpus that r
// came from, which knows their groups.
func (g Guarantee) Score(r Report, cases []Case) Score {
	groups := map[string]string{}
	for _, c := range cases {
		groups[c.ID] = c.Group
	}
	var s Score
	for _, rec := range r.Records {
		if !slices.Contains(g.Groups, groups[rec.ID]) {
			continue
		}
		s.Cases++
		if rec.Pass {
			s.Passed++
		}
		if rec.Exact {
			s.Exact++
		}
	}
	for _, l := range r.Laws {
		switch {
		case !slices.Contains(g.Laws, l.Name):
		case l.Status == NotOffered:
			s.NotOffered++
		default:
			s.Laws++
			if l.Status == Held {
				s.Held++
			}
		}
	}
	return s
}
