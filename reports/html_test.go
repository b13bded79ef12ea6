package reports

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandbed/sandbed/bench/gate"
	nethtml "golang.org/x/net/html"
)

// chromium is the browser of the tests; without one they are skipped by name, and
// fail under REQUIRE_ALL=1.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("REQUIRE_ALL") != "" {
		t.Fatal("chromium is missing (REQUIRE_ALL makes this skip a failure)")
	}
	t.Skip("chromium is missing")
	return ""
}

// browse opens a page in a frame of this width, since no window is narrower than 500
// pixels, and returns what the browser writes to its output. What the page says to its
// parent is in the element "found".
func browse(t *testing.T, page, scheme, width string, args ...string) []byte {
	t.Helper()
	frame := filepath.Join(filepath.Dir(page), "frame.html")
	if err := os.WriteFile(frame, fmt.Appendf(nil, `<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0">
<script>addEventListener("message", e => { const pre = document.createElement("pre"); pre.id = "found"; pre.textContent = e.data; document.body.append(pre); });</script>
<iframe src="%s" style="border:0;width:%spx;height:1600px"></iframe></body>`, filepath.Base(page), width), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a browser that hangs is ended, no more
	defer cancel()
	all := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--window-size=1200,1600", "--virtual-time-budget=2000",
		"--blink-settings=preferredColorScheme=" + map[string]string{"dark": "0", "light": "1"}[scheme]}, args...)
	cmd := exec.CommandContext(ctx, chromium(t), append(all, "file://"+frame)...)
	cmd.WaitDelay = 10 * time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.Bytes())
	}
	return out
}

// probe looks at the page from within and leaves what it found in it.
const probe = `{
addEventListener("error", e => parent.postMessage(JSON.stringify({errors: [e.message + " at " + e.lineno]}), "*"));
const found = {errors: [], sorted: {}, dark: matchMedia("(prefers-color-scheme: dark)").matches};
addEventListener("securitypolicyviolation", e => found.errors.push("policy: " + e.violatedDirective + " " + e.blockedURI));
const table = document.getElementById("all");
found.ground = getComputedStyle(document.body).backgroundColor;
found.width = innerWidth;
found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
// Contrast of each text with what is behind it, as WCAG counts it.
const channels = c => c.match(/[\d.]+/g).map(Number);
const light = c => { const [r, g, b] = channels(c).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor, n = channels(c); if (n.length < 4 || n[3] > 0) return c; } return "rgb(255, 255, 255)"; };
found.contrast = 21; found.texts = 0;
for (const e of document.body.querySelectorAll("*")) {
  if (e.closest("svg, script") || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
  const a = light(getComputedStyle(e).color), b = light(behind(e)), c = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  found.texts++;
  if (c < found.contrast) { found.contrast = c; found.worst = e.outerHTML.slice(0, 120); }
}
// Structure.
found.headings = [...document.querySelectorAll("h1, h2, h3")].map(h => h.tagName + " " + h.textContent);
found.tables = document.querySelectorAll("table").length;
found.uncaptioned = [...document.querySelectorAll("table")].filter(t => !t.caption || !t.caption.textContent.trim()).length;
found.unlabelled = [...document.querySelectorAll("svg, input, select")].filter(e => !e.getAttribute("aria-label") && !e.closest("label")).length;
found.scopeless = document.querySelectorAll("th:not([scope])").length;
found.plots = document.querySelectorAll("figure svg").length;
// Sorting by each column, up and down.
const cells = c => [...table.tBodies[0].rows].map(r => r.cells[c].dataset.v ?? r.cells[c].textContent);
[...table.tHead.rows[0].cells].forEach((h, c) => {
  h.querySelector("button").click();
  const up = cells(c), first = h.getAttribute("aria-sort");
  h.querySelector("button").click();
  found.sorted[h.textContent] = {up, down: cells(c), states: [first, h.getAttribute("aria-sort")]};
});
// Filtering.
const form = document.getElementById("filter");
const shown = () => [...table.tBodies[0].rows].filter(r => r.getClientRects().length).map(r => r.cells[0].textContent);
const set = (name, value) => { const e = form.elements[name]; if (e.type === "checkbox") e.checked = value; else e.value = value; form.dispatchEvent(new Event("input")); };
found.all = shown().length;
set("text", "SIZE=small"); found.text = shown(); set("text", "");
set("verdict", "REGRESSION"); found.verdict = shown(); found.said = form.elements.shown.value; set("lane", "exact"); found.both = shown(); set("verdict", ""); set("lane", "");
set("gated", true); found.gated = shown().length; set("gated", false);
found.after = shown().length;
parent.postMessage(JSON.stringify(found), "*");
}`

type found struct {
	Errors                                            []string
	Dark                                              bool
	Ground                                            string
	Width, Overflow                                   int
	Contrast                                          float64
	Worst                                             string
	Texts, Tables, Uncaptioned, Unlabelled, Scopeless int
	Plots, All, Gated, After                          int
	Headings, Text, Verdict, Both                     []string
	Said                                              string
	Sorted                                            map[string]struct{ Up, Down, States []string }
}

// look opens the report in a window and returns what the probe found.
func look(t *testing.T, dir, scheme, width string) found {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	// The page's own policy, and the probe: all else stays forbidden.
	sum := sha256.Sum256([]byte(probe))
	allowed := bytes.Replace(page, []byte("script-src "), []byte("script-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"' "), 1)
	if bytes.Equal(allowed, page) {
		t.Fatal("the page has no policy for scripts")
	}
	probed := filepath.Join(t.TempDir(), "probed.html")
	allowed = bytes.Replace(allowed, []byte("</body>"), []byte("<script>"+probe+"</script></body>"), 1)
	if err := os.WriteFile(probed, allowed, 0o644); err != nil {
		t.Fatal(err)
	}
	dom := browse(t, probed, scheme, width, "--dump-dom")
	m := regexp.MustCompile(`(?s)<pre id="found">(.*?)</pre>`).FindSubmatch(dom)
	if m == nil {
		t.Fatal("the probe did not run: its script was refused, or the page has no end")
	}
	var f found
	if err := json.Unmarshal([]byte(html.UnescapeString(string(m[1]))), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// written is the invented comparison on disk, with a history.
func written(t *testing.T, r gate.Report, launches []gate.Launch) string {
	t.Helper()
	dir := t.TempDir()
	for _, run := range inventedHistory() {
		if _, err := AddHistory(filepath.Join(dir, HistoryFile), run); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteComparison(dir, r, launches); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestPageInBrowser(t *testing.T) {
	chromium(t)
	r, launches := inventedComparison()
	dir := written(t, r, launches)
	for _, c := range []struct{ scheme, width, ground string }{{"light", "400", "rgb(255, 255, 255)"}, {"dark", "1200", "rgb(13, 17, 23)"}} {
		t.Run(c.scheme+"-"+c.width, func(t *testing.T) {
			f := look(t, dir, c.scheme, c.width)
			if len(f.Errors) > 0 {
				t.Errorf("the page has errors: %q", f.Errors)
			}
			if fmt.Sprint(f.Width) != c.width || f.Overflow != 0 {
				t.Errorf("the window is %d px wide, the page %d px wider than a window of %s", f.Width, f.Overflow, c.width)
			}
			if f.Dark != (c.scheme == "dark") || f.Ground != c.ground {
				t.Errorf("got dark %v on %s, want %s on %s", f.Dark, f.Ground, c.scheme, c.ground)
			}
			if f.Contrast < 4.5 || f.Texts < 100 {
				t.Errorf("got a contrast of %.2f over %d texts, want 4.5 at least: %s", f.Contrast, f.Texts, f.Worst)
			}
			if f.Tables < 7 || f.Uncaptioned+f.Unlabelled+f.Scopeless != 0 {
				t.Errorf("of %d tables %d have no caption; %d plots or fields have no label, %d headings no scope", f.Tables, f.Uncaptioned, f.Unlabelled, f.Scopeless)
			}
			if f.Plots != 4 {
				t.Errorf("got %d plots, want 4", f.Plots)
			}
			for i, h := range f.Headings {
				if (i == 0) != strings.HasPrefix(h, "H1 ") {
					t.Errorf("heading %d is %q, want one H1, the first", i, h)
				}
			}
			for _, want := range []string{"H2 Changed rows", "H2 Exact rows", "H2 Controls", "H2 All rows", "H2 Environment", "H2 Method", "H2 How to reproduce", "H2 History"} {
				if !strings.Contains(strings.Join(f.Headings, "\n"), want) {
					t.Errorf("no heading %q in %q", want, f.Headings)
				}
			}
			checkSorted(t, f)
			if f.All != len(r.Rows) || f.After != len(r.Rows) || f.Gated != 23 {
				t.Errorf("got %d rows, %d of them gated, %d after filtering; want %d, 23, %[1]d", f.All, f.Gated, f.After, len(r.Rows))
			}
			if len(f.Text) != 6 || !strings.Contains(f.Text[0], "size=small") {
				t.Errorf("filtered by a part of the name: %q, want the 6 small ones", f.Text)
			}
			if len(f.Verdict) != 3 || len(f.Both) != 1 || f.Said != "3 of 26 rows" {
				t.Errorf("filtered by verdict: %q, by lane too: %q; said %q", f.Verdict, f.Both, f.Said)
			}
		})
	}
}

// checkSorted looks at the columns as the clicks left them: empty cells last, the
// others in order.
func checkSorted(t *testing.T, f found) {
	t.Helper()
	if len(f.Sorted) != 10 {
		t.Errorf("got %d columns to sort by, want 10", len(f.Sorted))
	}
	for column, s := range f.Sorted {
		if strings.Join(s.States, " ") != "ascending descending" {
			t.Errorf("%s: aria-sort was %q", column, s.States)
		}
		for i, list := range [][]string{s.Up, s.Down} {
			ended, before, moves := false, "", 0
			for _, v := range list {
				if v == "" {
					ended = true
					continue
				}
				if ended {
					t.Errorf("%s: %q stands behind an empty cell", column, v)
				}
				if before != "" {
					var a, b float64
					order := strings.Compare(before, v)
					if json.Unmarshal([]byte(before), &a) == nil && json.Unmarshal([]byte(v), &b) == nil {
						order = map[bool]int{true: -1, false: 1}[a < b]
						if a == b {
							order = 0
						}
					} else if column == "Benchmark" {
						order = 0 // localeCompare's affair
					}
					if order != 0 {
						moves++
					}
					if i == 0 && order > 0 || i == 1 && order < 0 {
						t.Errorf("%s, click %d: %q stands before %q", column, i+1, before, v)
					}
				}
				before = v
			}
			if moves == 0 && column == "Ratio" {
				t.Errorf("%s: all cells are equal", column)
			}
		}
	}
}

func TestPageScreenshots(t *testing.T) {
	chromium(t)
	r, launches := inventedComparison()
	dir := written(t, r, launches)
	for _, c := range []struct {
		scheme, width string
		pixels        int
	}{{"dark", "400", 400}, {"light", "1200", 1200}} {
		t.Run(c.scheme+"-"+c.width, func(t *testing.T) {
			shot := filepath.Join(t.TempDir(), "shot.png")
			browse(t, filepath.Join(dir, "report.html"), c.scheme, c.width, "--screenshot="+shot)
			data, err := os.ReadFile(shot)
			if err != nil {
				t.Fatal(err)
			}
			img, err := png.Decode(bytes.NewReader(data))
			if err != nil || img.Bounds().Dx() < c.pixels {
				t.Fatalf("%v, want a picture %d pixels wide", err, c.pixels)
			}
			// Something is drawn, on a ground of the scheme.
			colours, dark := map[[3]uint32]bool{}, 0
			for y := 0; y < img.Bounds().Dy(); y += 2 {
				for x := 0; x < c.pixels; x += 2 {
					r, g, b, _ := img.At(x, y).RGBA()
					colours[[3]uint32{r >> 8, g >> 8, b >> 8}] = true
					if r+g+b < 3*0x8000 {
						dark++
					}
				}
			}
			share := float64(dark) / float64(c.pixels/2*img.Bounds().Dy()/2)
			if len(colours) < 50 || (share > 0.5) != (c.scheme == "dark") {
				t.Errorf("got %d colours, %.0f %% of them dark, want a page in %s", len(colours), 100*share, c.scheme)
			}
		})
	}
}

// TestHostilePage: names and texts stay text.
func TestHostilePage(t *testing.T) {
	dir := written(t, hostile(), nil)
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for z := nethtml.NewTokenizer(bytes.NewReader(page)); ; {
		kind := z.Next()
		if kind == nethtml.ErrorToken {
			break
		}
		if kind == nethtml.StartTagToken || kind == nethtml.SelfClosingTagToken {
			name, more := z.TagName()
			count[string(name)]++
			for more {
				var key, value []byte
				key, value, more = z.TagAttr()
				if k := string(key); strings.HasPrefix(k, "on") || k == "src" || k == "href" && !bytes.HasPrefix(value, []byte("#")) {
					t.Errorf("<%s %s=%q>: nothing may be loaded or run", name, key, value)
				}
			}
		}
	}
	if count["script"] != 1 || count["img"]+count["iframe"]+count["link"]+count["object"] != 0 {
		t.Errorf("got elements %v, want one script and nothing that loads", count)
	}
	if bytes.ContainsRune(page, '\u202e') || bytes.ContainsRune(page, 0) {
		t.Error("a character that reorders or ends text is in the page as it came")
	}
	t.Run("browser", func(t *testing.T) {
		f := look(t, dir, "light", "400")
		if len(f.Errors) > 0 || f.Overflow != 0 {
			t.Errorf("errors %q, %d px too wide", f.Errors, f.Overflow)
		}
	})
}
