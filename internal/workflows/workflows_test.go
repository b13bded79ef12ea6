package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const scripts = "../../.github/scripts"

// run runs a script in dir with that environment and nothing else of ours but
// what finds programs, and returns its exit code and all that it wrote.
func run(t *testing.T, dir, script string, env map[string]string, args ...string) (code int, out string) {
	t.Helper()
	for _, tool := range []string{"bash", "curl", "jq", "git"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("REQUIRE_ALL") != "" {
				t.Fatalf("%s is missing (REQUIRE_ALL makes this skip a failure)", tool)
			}
			t.Skipf("the scripts need %s", tool)
		}
	}
	path, err := filepath.Abs(filepath.Join(scripts, script))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "GIT_CONFIG_NOSYSTEM=1"}
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, b)
	}
	return strings.TrimSpace(string(b))
}

const (
	marker = "<!-- benchrun:report v=1 suite=own -->"
	bot    = "github-actions[bot]"
)

type comment struct {
	ID   int    `json:"id"`
	Body string `json:"body"`
	User struct {
		Login string `json:"login"`
	} `json:"user"`
}

func by(login string, id int, body string) comment {
	c := comment{ID: id, Body: body}
	c.User.Login = login
	return c
}

// service is a stub of the REST API: one pull request, 7, and its comments.
type service struct {
	*httptest.Server
	mu       sync.Mutex
	head     string
	comments []comment
	wrote    []string // "POST", "PATCH 3"
	broken   int      // requests still to be answered with 502
}

func newService(t *testing.T) *service {
	s := &service{head: "abc"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /repos/o/r/pulls/7", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"head":{"sha":%q}}`, s.head)
	})
	mux.HandleFunc("GET /repos/o/r/issues/7/comments", func(w http.ResponseWriter, r *http.Request) {
		page, _ := strconv.Atoi(r.FormValue("page"))
		n, _ := strconv.Atoi(r.FormValue("per_page"))
		from := min((page-1)*n, len(s.comments))
		list := s.comments[from:min(from+n, len(s.comments))]
		if len(list) == 0 {
			list = []comment{}
		}
		json.NewEncoder(w).Encode(list)
	})
	save := func(w http.ResponseWriter, r *http.Request, keep func(body string)) {
		var c comment
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		keep(c.Body)
		fmt.Fprint(w, "{}")
	}
	mux.HandleFunc("POST /repos/o/r/issues/7/comments", func(w http.ResponseWriter, r *http.Request) {
		save(w, r, func(body string) {
			s.wrote = append(s.wrote, "POST")
			s.comments = append(s.comments, by(bot, 1000+len(s.comments), body))
		})
	})
	mux.HandleFunc("PATCH /repos/o/r/issues/comments/{id}", func(w http.ResponseWriter, r *http.Request) {
		save(w, r, func(body string) {
			s.wrote = append(s.wrote, "PATCH "+r.PathValue("id"))
			i := slices.IndexFunc(s.comments, func(c comment) bool { return strconv.Itoa(c.ID) == r.PathValue("id") })
			s.comments[i].Body = body
		})
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.broken > 0:
			s.broken--
			http.Error(w, "try again", http.StatusBadGateway)
		case r.Header.Get("Authorization") != "Bearer secret":
			http.Error(w, "no token", http.StatusForbidden)
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// report writes what compare.sh leaves.
func report(t *testing.T, verdict string) string {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "comment.md"), marker+"\n\nverdict: "+verdict+" & `code` \"quotes\" 🛠\n", 0o644)
	write(t, filepath.Join(dir, "pull-request"), "7\n", 0o644)
	row := "OK"
	if verdict != "ok" {
		row = "REGRESSION"
	}
	write(t, filepath.Join(dir, "report.json"), fmt.Sprintf(`{"verdict":%q,"rows":[{"verdict":"UNCHANGED"},{"verdict":%q}]}`, verdict, row), 0o644)
	return dir
}

func (s *service) comment(t *testing.T, dir string) (int, string) {
	return run(t, t.TempDir(), "comment.sh", map[string]string{
		"GITHUB_API_URL": s.URL, "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "secret", "HEAD_SHA": "abc",
	}, dir)
}

func TestComment(t *testing.T) {
	// Others' comments fill the first page; one of them quotes the marker.
	var others []comment
	for i := range 100 {
		others = append(others, by("someone", i+1, "hello"))
	}
	others[5].Body = marker + "\nnot the bot's"
	ours := append(slices.Clone(others), by(bot, 500, "another report"), by(bot, 501, marker+"\r\nold"))
	for _, tt := range []struct {
		name     string
		comments []comment
		verdict  string
		head     string
		wrote    []string
		says     string
	}{
		{"the first one", nil, "regression", "abc", []string{"POST"}, "commented on pull request 7"},
		{"not among the others", others, "regression", "abc", []string{"POST"}, "commented"},
		{"the one that is there, on the second page", ours, "regression", "abc", []string{"PATCH 501"}, "updated comment 501"},
		{"nothing changed, none there", others, "ok", "abc", nil, "nothing changed"},
		{"nothing changed, one there", ours, "ok", "abc", []string{"PATCH 501"}, "updated"},
		{"pushed meanwhile", ours, "regression", "def", nil, "nothing to do"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t)
			s.comments, s.head = slices.Clone(tt.comments), tt.head
			dir := report(t, tt.verdict)
			code, out := s.comment(t, dir)
			if code != 0 || !strings.Contains(out, tt.says) || !slices.Equal(s.wrote, tt.wrote) {
				t.Fatalf("code %d, wrote %q, want %q:\n%s", code, s.wrote, tt.wrote, out)
			}
			if len(tt.wrote) == 0 {
				return
			}
			// Whole, and the second time the same one.
			want := read(t, filepath.Join(dir, "comment.md"))
			if i := slices.IndexFunc(s.comments, func(c comment) bool { return c.Body == want }); i < 0 {
				t.Errorf("the body did not arrive whole")
			}
			n := len(s.comments)
			if code, out := s.comment(t, dir); code != 0 || len(s.comments) != n {
				t.Errorf("again: code %d, %d comments, want %d:\n%s", code, len(s.comments), n, out)
			}
		})
	}
}

// What a fork's code may have written is not believed.
func TestCommentRefuses(t *testing.T) {
	for _, tt := range []struct{ name, file, text, says string }{
		{"a path for a number", "pull-request", "7/../8", "not a number"},
		{"a shell for a number", "pull-request", "$(id)", "not a number"},
		{"no number", "pull-request", "", "not a number"},
		{"no marker", "comment.md", "hello", "no marker"},
		{"another marker", "comment.md", "<!-- else -->\n", "no marker"},
		{"too long", "comment.md", marker + "\n" + strings.Repeat("é", 65536), "at most 65536"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t)
			dir := report(t, "regression")
			write(t, filepath.Join(dir, tt.file), tt.text, 0o644)
			if code, out := s.comment(t, dir); code != 2 || !strings.Contains(out, tt.says) || len(s.wrote) > 0 {
				t.Errorf("code %d, wrote %q, want 2 and nothing:\n%s", code, s.wrote, out)
			}
		})
	}
	t.Run("a link", func(t *testing.T) {
		s := newService(t)
		dir := report(t, "regression")
		secret := filepath.Join(t.TempDir(), "secret")
		write(t, secret, marker+"\nsecret", 0o600)
		if err := errors.Join(os.Remove(filepath.Join(dir, "comment.md")), os.Symlink(secret, filepath.Join(dir, "comment.md"))); err != nil {
			t.Fatal(err)
		}
		if code, out := s.comment(t, dir); code != 2 || len(s.wrote) > 0 {
			t.Errorf("code %d, wrote %q:\n%s", code, s.wrote, out)
		}
	})
	t.Run("another pull request's number", func(t *testing.T) {
		s := newService(t)
		dir := report(t, "regression")
		write(t, filepath.Join(dir, "pull-request"), "8", 0o644)
		if code, out := s.comment(t, dir); code == 0 || len(s.wrote) > 0 {
			t.Errorf("code %d, wrote %q:\n%s", code, s.wrote, out)
		}
	})
}

func TestCommentOutlastsAnUnavailableService(t *testing.T) {
	s := newService(t)
	s.broken = 1
	if code, out := s.comment(t, report(t, "regression")); code != 0 || !slices.Equal(s.wrote, []string{"POST"}) {
		t.Errorf("code %d, wrote %q:\n%s", code, s.wrote, out)
	}
}

// repository has a main branch that went on after the pull request left it.
func repository(t *testing.T) (dir, fork, main, head string) {
	dir = t.TempDir()
	commit := func(name string) string {
		write(t, filepath.Join(dir, name), name, 0o644)
		git(t, dir, "add", ".")
		git(t, dir, "commit", "-qm", name)
		return git(t, dir, "rev-parse", "HEAD")
	}
	git(t, dir, "init", "-q")
	fork = commit("a")
	git(t, dir, "checkout", "-qb", "change")
	head = commit("b")
	git(t, dir, "checkout", "-q", "main")
	main = commit("c")
	return dir, fork, main, head
}

func TestCompare(t *testing.T) {
	dir, fork, main, head := repository(t)
	// A benchrun that says how it was called.
	fake := filepath.Join(t.TempDir(), "benchrun")
	write(t, fake, "#!/bin/bash\nprintf '%s\\n' \"$@\" >args\n[[ -z $SUMMARY ]] || echo \"$SUMMARY\" >out/summary.md\nexit $EXIT\n", 0o755)
	for _, tt := range []struct {
		name, exit, summary, number string
		code                        int
		says                        string
	}{
		{"held", "0", "all held", "7", 0, "all held"},
		{"regression", "1", "❌ 1 slowdown", "7", 0, "❌ 1 slowdown"},
		{"unfit, no report", "3", "", "", 0, "ended with code 3 and wrote no report"},
		{"a number that is none", "0", "x", "7; id", 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tmp := t.TempDir()
			code, out := run(t, dir, "compare.sh", map[string]string{
				"BENCHRUN": fake + " ", "BASE_REF": main, "HEAD_REF": head, "OUT": "out", "EXTRA": "--quick --row x",
				"PULL_REQUEST": tt.number, "EXIT": tt.exit, "SUMMARY": tt.summary,
				"GITHUB_OUTPUT": filepath.Join(tmp, "output"), "GITHUB_STEP_SUMMARY": filepath.Join(tmp, "summary"),
			})
			defer os.RemoveAll(filepath.Join(dir, "out"))
			if code != tt.code {
				t.Fatalf("code %d, want %d:\n%s", code, tt.code, out)
			}
			if tt.code != 0 {
				return
			}
			want := "compare\n--base\n" + fork + "\n--head\n" + head + "\n--budget\n8m\n--out\nout\n--quick\n--row\nx\n"
			if got := read(t, filepath.Join(dir, "args")); got != want {
				t.Errorf("called with %q, want %q", got, want)
			}
			if got := read(t, filepath.Join(tmp, "output")); got != "code="+tt.exit+"\n" {
				t.Errorf("output %q", got)
			}
			if got := read(t, filepath.Join(tmp, "summary")); !strings.Contains(got, tt.says) {
				t.Errorf("summary %q, want %q in it", got, tt.says)
			}
			if tt.number != "" && strings.TrimSpace(read(t, filepath.Join(dir, "out/pull-request"))) != tt.number {
				t.Error("the number of the pull request is not kept")
			}
		})
	}
}

func TestGate(t *testing.T) {
	for _, tt := range []struct {
		code, mode string
		want       int
		says       string
	}{
		{"0", "fail", 0, "held"},
		{"1", "fail", 1, "::error title=benchrun::a regression"},
		{"3", "fail", 3, "no verdict"},
		{"4", "fail", 4, "wrong answer"},
		{"1", "warn", 0, "::warning title=benchrun::a regression"},
		{"1", "off", 0, "a regression"},
		{"1", "maybe", 2, "give fail, warn or off"},
		{"137", "fail", 137, "ended with code 137"},
	} {
		code, out := run(t, t.TempDir(), "gate.sh", map[string]string{"CODE": tt.code, "MODE": tt.mode})
		if code != tt.want || !strings.Contains(out, tt.says) {
			t.Errorf("code %s, mode %s: exit %d, want %d and %q:\n%s", tt.code, tt.mode, code, tt.want, tt.says, out)
		}
	}
	if code, _ := run(t, t.TempDir(), "gate.sh", nil); code == 0 {
		t.Error("a comparison that left no code counts as held")
	}
}

// Two nights that meet: both records stay.
func TestRecord(t *testing.T) {
	origin := t.TempDir()
	git(t, origin, "init", "-q", "--bare")
	clone := func() string {
		dir := filepath.Join(t.TempDir(), "clone")
		git(t, origin, "clone", "-q", origin, dir)
		return dir
	}
	first := clone()
	const record = "reports/validation/aa.ndjson"
	write(t, filepath.Join(first, ".gitattributes"), read(t, "../../.gitattributes"), 0o644)
	write(t, filepath.Join(first, record), "0\n", 0o644)
	git(t, first, "add", ".")
	git(t, first, "commit", "-qm", "begin")
	git(t, first, "push", "-q", "origin", "HEAD:main")
	second := clone()
	git(t, second, "checkout", "-q", "main")
	env := map[string]string{"RECORD": "reports/validation", "BRANCH": "main"}
	if code, out := run(t, first, "record.sh", env); code == 0 {
		t.Errorf("a night without a record counts as one:\n%s", out)
	}
	for i, dir := range []string{first, second} {
		write(t, filepath.Join(dir, record), fmt.Sprintf("0\n%d\n", i+1), 0o644)
		if code, out := run(t, dir, "record.sh", env); code != 0 {
			t.Fatalf("night %d: code %d:\n%s", i+1, code, out)
		}
	}
	if got := git(t, origin, "show", "main:"+record); got != "0\n1\n2" && got != "0\n2\n1" {
		t.Errorf("the record is %q", got)
	}
}
