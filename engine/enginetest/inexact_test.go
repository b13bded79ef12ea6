package enginetest

import (
	"strings"
	"testing"
)

func TestInexactList(t *testing.T) {
	list, err := InexactCases()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("the embedded list is empty")
	}
	for line, names := range map[string]string{
		"":                            "line 1",
		"case,why\n":                  "line 1",
		"A1,always,,2026-01-02":       "reason",
		"A1,always,because,yesterday": "date",
		"A1,often,because,2026-01-02": "when",
		",always,because,2026-01-02":  "case",
		"A1,always,because,2026-01-02\nA1,slow,because,2026-01-02": "case",
	} {
		text := line
		if strings.HasPrefix(line, "A") || strings.HasPrefix(line, ",") {
			text = "case,when,reason,date\n" + line + "\n"
		}
		if _, err := parseInexact(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%q gave %v, want an error that names %s", line, err, names)
		}
	}
}

func TestCheckInexact(t *testing.T) {
	list := []Inexact{{Case: "A", Reason: "r"}, {Case: "B", Slow: true, Reason: "r"}, {Case: "gone", Reason: "r"}}
	records := []Record{
		{ID: "A", Pass: true, Exact: true},                              // stale
		{ID: "B", Pass: true, Exact: true},                              // may be exact here
		{ID: "C", Pass: true, Class: "error", Expected: "ok"},           // not listed
		{ID: "D", Pass: true, Class: "limit:wallClock"},                 // a slow machine
		{ID: "E", Class: "error", Expected: "ok", Pass: false},          // failed: another finding's business
		{ID: "F", Pass: true, Exact: true, Class: "ok", Expected: "ok"}, // fine
	}
	var got []string
	for _, f := range CheckInexact(list, records) {
		got = append(got, f.Case)
	}
	if s := strings.Join(got, " "); s != "C A gone" {
		t.Errorf("findings on %q, want \"C A gone\"", s)
	}
	records[0].Exact = false
	got = nil
	for _, f := range CheckInexact(list, records, []Record{{ID: "A", Pass: true, Exact: true}}) {
		got = append(got, f.Case)
	}
	if s := strings.Join(got, " "); s != "C gone" {
		t.Errorf("with one inexact run of A: findings on %q, want \"C gone\"", s)
	}
}
