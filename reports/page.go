package reports

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
)

// page is markdown in the making.
type page struct{ bytes.Buffer }

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(p, format+"\n", args...)
}

// fold writes a part that is closed until it is clicked.
func (p *page) fold(title string, body func()) {
	p.line("<details><summary>%s</summary>", title)
	p.line("")
	body()
	p.line("")
	p.line("</details>")
	p.line("")
}

// marker is the first line of a report, by which a comment is found and replaced:
// of a run, or of a comparison ("report").
func marker(kind, engine string) string {
	name, _, _ := strings.Cut(engine, ",") // the version behind the comma would make it another comment
	suite := strings.Join(strings.FieldsFunc(cut(name, 60), func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("./_", r))
	}), "-")
	if suite == "" {
		suite = "unknown"
	}
	return fmt.Sprintf("<!-- benchrun:%s v=1 suite=%s -->", kind, suite)
}

// The longest texts that a table shows; report.json has all of them whole.
const (
	longName = 120
	longText = 400
	longUnit = 30
)

// cut shortens s to n characters by what is in its middle.
func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	half := (n - 1) / 2
	return string(r[:half]) + "…" + string(r[len(r)-(n-1-half):])
}

// plain makes s one line whose characters show: what would reorder, hide or break
// text (U+202E and its like) is written out.
func plain(s string) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '\n' || r == '\r' || r == '\t' || r == '\u2028' || r == '\u2029':
			b.WriteByte(' ')
		case unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// markup are the characters that GitHub's markdown could take as markup, a
// mention or a cell's end.
var markup = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", "&", "&amp;", "`", "'", "*", "\\*", "[", "\\[", "@", "@\u200b")

// inline makes text harmless within a line of markdown.
func inline(s string) string { return markup.Replace(plain(cut(s, longText))) }

// code writes s as code within a line or a cell.
func code(s string) string {
	s = plain(cut(s, longName))
	if s == "" {
		return "–"
	}
	if !strings.ContainsAny(s, "`|\\<&") {
		return "`" + s + "`"
	}
	// A fence cannot hold these and a table at once: each as a character reference.
	var b strings.Builder
	for _, r := range s {
		if r < 0x80 && !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != ' ' {
			fmt.Fprintf(&b, "&#%d;", r)
		} else {
			b.WriteRune(r)
		}
	}
	return "<code>" + b.String() + "</code>"
}
