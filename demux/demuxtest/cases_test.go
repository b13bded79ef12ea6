package demuxtest

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Every one of the forty cases names a law or a test that there is.
func TestCases(t *testing.T) {
	f, err := os.Open("testdata/cases.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 41 {
		t.Fatalf("%d cases, want 40", len(rows)-1)
	}
	sources := map[string][]byte{}
	for pkg, pattern := range map[string]string{"demux": "../*_test.go", "demuxtest": "*_test.go"} {
		files, _ := filepath.Glob(pattern)
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			sources[pkg] = append(sources[pkg], b...)
		}
	}
	for i, row := range rows[1:] {
		if row[0] != strconv.Itoa(i+1) || row[2] == "" {
			t.Errorf("row %d is %q", i+1, row)
		}
		for _, where := range strings.Fields(row[2]) {
			pkg, name, _ := strings.Cut(where, ":")
			if pkg == "law" {
				lawNamed(t, name)
			} else if !bytes.Contains(sources[pkg], []byte("func "+name+"(")) {
				t.Errorf("case %d: there is no %s in %s", i+1, name, pkg)
			}
		}
	}
}
