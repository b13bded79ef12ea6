package enginetest

import (
	"context"
	"testing"

	"github.com/sandbed/sandbed/engine"
)

// Run puts the backends of f through the suite, one subtest a case
// ("case/A04") and one a law of its own ("law/cancel"), and returns the report
// for further checks, such as [CheckInexact]. It calls f as a [Factory] is
// called, and closes what it gives. Laws that the backend does not offer are skipped by
// name. Do not run it in parallel with other tests: it counts goroutines.
func Run(t *testing.T, f func(testing.TB) engine.Backend) Report {
	t.Helper()
	return RunWith(t, f, Options{})
}

// RunWith is [Run] with options.
func RunWith(t *testing.T, f func(testing.TB) engine.Backend, o Options) Report {
	t.Helper()
	s := newSuite(t.Context(), func(context.Context) (engine.Backend, error) { return f(t), nil }, o)
	defer s.close()
	show := func(t *testing.T, findings []Finding) {
		for _, f := range findings {
			t.Error(f)
		}
	}
	for _, c := range s.o.Cases {
		t.Run("case/"+c.ID, func(t *testing.T) {
			record, findings := s.runCase(c)
			show(t, findings)
			if s.o.OnCase != nil {
				s.o.OnCase(record, findings)
			}
		})
		if s.stopped() {
			break
		}
	}
	for _, l := range laws {
		if s.o.CasesOnly && l.check != nil {
			continue
		}
		t.Run("law/"+l.Name, func(t *testing.T) {
			before := len(s.findings)
			var r LawResult
			if l.check != nil && !s.stopped() {
				r = s.runLaw(l)
				show(t, s.findings[before:])
				if s.o.OnLaw != nil {
					s.o.OnLaw(r)
				}
			} else {
				r = s.result(l)
				show(t, r.Findings)
			}
			for _, n := range r.Notes {
				t.Log(n)
			}
			if r.Status == NotOffered {
				t.Skip(l.Sentence + " Not offered by this backend.")
			}
		})
	}
	return s.report()
}
