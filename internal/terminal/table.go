package terminal

import (
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width is how many characters fit on a line of w: the terminal's, else $COLUMNS; 0 means that nothing has to fit.
func Width(w io.Writer, getenv func(string) string) int {
	if f, ok := w.(*os.File); ok && Is(w) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	if n, err := strconv.Atoi(getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	return 0
}

// Column is one column of a table.
type Column struct {
	Head string
	// Min is the width below which the column is rather left out than shortened; 0 never shortens it.
	Min int
	// Rank says which columns go first where there is no room: the highest; 0 stays always.
	Rank int
}

// Cell is a text in a style.
type Cell struct {
	Text  string
	Style Style
}

// Table prints aligned rows below a line of heads, each line within width characters (0: no limit): long cells are cut,
// and columns of high rank left out, before a line is broken.
func (p *Printer) Table(columns []Column, rows [][]Cell, width int) {
	shown, widths := fit(columns, rows, width)
	heads := make([]Cell, len(columns))
	for i, c := range columns {
		heads[i] = Cell{c.Head, Dim}
	}
	for _, row := range append([][]Cell{heads}, rows...) {
		parts := make([]string, 0, len(shown))
		for k, i := range shown {
			text := cut(Clean(row[i].Text), widths[k])
			if k < len(shown)-1 {
				text = Pad(text, widths[k])
			}
			parts = append(parts, p.Paint(row[i].Style, text))
		}
		p.Line("%s", strings.TrimRight(strings.Join(parts, gap), " "))
	}
}

const gap = "  "

// fit chooses the columns that are shown and their widths.
func fit(columns []Column, rows [][]Cell, width int) (shown, widths []int) {
	natural := make([]int, len(columns))
	for i, c := range columns {
		natural[i] = utf8.RuneCountInString(c.Head)
		for _, row := range rows {
			natural[i] = max(natural[i], utf8.RuneCountInString(row[i].Text))
		}
		shown = append(shown, i)
	}
	for {
		widths = widths[:0]
		for _, i := range shown {
			widths = append(widths, natural[i])
		}
		if width == 0 || shrink(columns, shown, widths, width) {
			return shown, widths
		}
		last := -1
		for k, i := range shown {
			if columns[i].Rank > 0 && (last < 0 || columns[i].Rank > columns[shown[last]].Rank) {
				last = k
			}
		}
		if last < 0 {
			return shown, widths // nothing more can go
		}
		shown = append(shown[:last], shown[last+1:]...)
	}
}

// shrink takes characters from the widest column that may give some, until the line fits.
func shrink(columns []Column, shown, widths []int, width int) bool {
	total := len(gap) * (len(shown) - 1)
	for _, w := range widths {
		total += w
	}
	for total > width {
		widest := -1
		for k, i := range shown {
			if least := columns[i].Min; least > 0 && widths[k] > least && (widest < 0 || widths[k] > widths[widest]) {
				widest = k
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
		total--
	}
	return true
}

// cut shortens text to width characters; the last one says that something is missing.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width <= 1 {
		return "…"
	}
	return string([]rune(text)[:width-1]) + "…"
}

// Age is a duration for people: its largest unit, and the next one where that is small.
func Age(d time.Duration) string {
	if d < 0 {
		return "0s"
	}
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	for i, u := range units {
		if d < u.of {
			continue
		}
		n := int64(d / u.of)
		out := strconv.FormatInt(n, 10) + u.name
		if i+1 < len(units) && n < 10 {
			if rest := int64(d % u.of / units[i+1].of); rest > 0 {
				out += strconv.FormatInt(rest, 10) + units[i+1].name
			}
		}
		return out
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}
