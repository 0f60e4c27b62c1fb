package connector

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// exprCostMax bounds one evaluation: a reply of 8 MiB cannot make nested macros run for minutes. Reaching it counts as an
// evaluation error, so the rule does not match.
const exprCostMax = 5_000_000

// scope holds what an expression can see of one call (contract §10). A body that could not be read is not there at all:
// an expression that needs it fails to evaluate, and so does not match.
type scope struct {
	status    int64
	headers   map[string]string
	isError   bool
	exitCode  int64
	body      any
	bodyKnown bool
	args      map[string]any
	ref, key  string
}

// ResolveName and Parent make a scope an activation of CEL.
func (s *scope) ResolveName(name string) (any, bool) {
	switch name {
	case "status":
		return s.status, true
	case "headers":
		return s.headers, true
	case "is_error":
		return s.isError, true
	case "exit_code":
		return s.exitCode, true
	case "body":
		return s.body, s.bodyKnown
	case "args":
		return s.args, true
	case "operation_ref":
		return s.ref, true
	case "idempotency_key":
		return s.key, true
	}
	return nil, false
}

func (s *scope) Parent() interpreter.Activation { return nil }

var headersType = cel.MapType(cel.StringType, cel.StringType)

// variables are typed, so that a misspelt name or a status compared with a string is an error of the config.
var variables = map[string][]cel.EnvOption{
	KindHTTP:    {cel.Variable("status", cel.IntType), cel.Variable("headers", headersType)},
	KindNATS:    {cel.Variable("headers", headersType)},
	KindMCP:     {cel.Variable("is_error", cel.BoolType)},
	KindCommand: {cel.Variable("exit_code", cel.IntType)},
	KindGo:      {},
}

var environments = sync.OnceValues(func() (map[string]*cel.Env, error) {
	envs := make(map[string]*cel.Env, len(variables))
	for kind, vars := range variables {
		env, err := cel.NewEnv(append([]cel.EnvOption{
			cel.CustomTypeAdapter(jsonAdapter{}),
			cel.CrossTypeNumericComparisons(true),
			cel.Variable("body", cel.DynType),
			cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
			cel.Variable("operation_ref", cel.StringType),
			cel.Variable("idempotency_key", cel.StringType),
		}, vars...)...)
		if err != nil {
			return nil, fmt.Errorf("connector: CEL environment of %s: %w", kind, err)
		}
		envs[kind] = env
	}
	return envs, nil
})

// jsonAdapter shows decoded JSON to CEL. A number written without fraction and exponent is an int if it fits, else a
// uint if it fits; every other number is a double. CEL compares the three with each other by value.
type jsonAdapter struct{}

func (a jsonAdapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return types.Int(n)
		}
		if n, err := strconv.ParseUint(string(v), 10, 64); err == nil {
			return types.Uint(n)
		}
		f, _ := strconv.ParseFloat(string(v), 64)
		return types.Double(f)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case map[string]string:
		return types.NewStringStringMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// expr is one compiled expression. Safe for concurrent use.
type expr struct {
	program cel.Program
	out     *cel.Type
	path    []any // the expression is a plain path from a variable: its steps, the variable first
}

// compileExpr compiles the expression at path of a tool's config for the variables of kind.
func compileExpr(kind, source string, wantBool bool, path ...any) (*expr, error) {
	envs, err := environments()
	if err != nil {
		return nil, err
	}
	tree, issues := envs[kind].Compile(source)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		return nil, &SpecError{
			Path: path, Line: first.Location.Line(), Column: first.Location.Column() + 1, Message: first.Message,
		}
	}
	if out := tree.OutputType(); wantBool && !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, &SpecError{Path: path, Line: 1, Column: 1, Message: "a condition must be true or false, not " + out.String()}
	}
	program, err := envs[kind].Program(tree, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(exprCostMax))
	if err != nil {
		return nil, &SpecError{Path: path, Line: 1, Column: 1, Message: "cannot be evaluated: " + err.Error()}
	}
	steps, plain := plainPath(tree.NativeRep().Expr())
	if !plain {
		steps = nil // those after something that is none, as in body.items.filter(…)[0].id
	}
	return &expr{program: program, out: tree.OutputType(), path: steps}, nil
}

// compileWait compiles an expression that says how long to wait.
func compileWait(kind, source string, path ...any) (*expr, error) {
	e, err := compileExpr(kind, source, false, path...)
	if err != nil {
		return nil, err
	}
	switch e.out.Kind() {
	case types.IntKind, types.UintKind, types.DoubleKind, types.StringKind, types.TimestampKind, types.DurationKind, types.DynKind:
		return e, nil
	}
	return nil, &SpecError{Path: path, Line: 1, Column: 1, Message: "must be seconds, a time or a text with one of the two, not " + e.out.String()}
}

// plainPath returns the steps of an expression like body.items[0].id.
func plainPath(e ast.Expr) ([]any, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return []any{e.AsIdent()}, true
	case ast.SelectKind:
		s := e.AsSelect()
		if s.IsTestOnly() {
			return nil, false
		}
		steps, ok := plainPath(s.Operand())
		return append(steps, s.FieldName()), ok
	case ast.CallKind:
		c := e.AsCall()
		if c.FunctionName() != operators.Index || len(c.Args()) != 2 || c.Args()[1].Kind() != ast.LiteralKind {
			return nil, false
		}
		steps, ok := plainPath(c.Args()[0])
		switch k := c.Args()[1].AsLiteral().(type) {
		case types.String:
			return append(steps, string(k)), ok
		case types.Int:
			return append(steps, int(k)), ok
		}
	}
	return nil, false
}

// matches evaluates a condition; an evaluation error is no match.
func (e *expr) matches(s *scope) bool {
	out, _, err := e.program.Eval(s)
	return err == nil && out == types.True
}

// value evaluates to decoded JSON. A plain path yields what the reply has, numbers as written; a computed number keeps
// every digit as an int or uint and is the shortest text that reads the same as a double.
func (e *expr) value(s *scope) (any, bool) {
	if e.path != nil {
		return follow(s, e.path)
	}
	out, _, err := e.program.Eval(s)
	if err != nil {
		return nil, false
	}
	return toJSON(out)
}

// wait evaluates to how long to wait, as readWait reads it; CEL's own times and durations are read too. now is the far
// side's.
func (e *expr) wait(s *scope, now time.Time) (time.Duration, bool) {
	out, _, err := e.program.Eval(s)
	if err != nil {
		return 0, false
	}
	switch v := out.(type) {
	case types.Duration:
		return min(v.Duration, retryAfterMax), v.Duration >= 0
	case types.Timestamp:
		return until(v.Time, now), true
	}
	v, ok := toJSON(out)
	if !ok {
		return 0, false
	}
	return readWait(v, now)
}

func follow(s *scope, path []any) (any, bool) {
	v, ok := s.ResolveName(path[0].(string))
	if !ok {
		return nil, false
	}
	if len(path) == 1 {
		if _, isJSON := v.(map[string]any); !isJSON && path[0] != "body" {
			return toJSON(jsonAdapter{}.NativeToValue(v))
		}
		return v, true
	}
	for _, step := range path[1:] {
		switch at := v.(type) {
		case map[string]any:
			key, isKey := step.(string)
			if v, ok = at[key]; !isKey || !ok {
				return nil, false
			}
		case map[string]string:
			key, isKey := step.(string)
			if v, ok = at[key]; !isKey || !ok {
				return nil, false
			}
		case []any:
			i, isIndex := step.(int)
			if !isIndex || i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// toJSON turns a value of CEL into decoded JSON; what JSON cannot hold is refused.
func toJSON(v ref.Val) (any, bool) {
	switch v := v.(type) {
	case types.Null:
		return nil, true
	case types.Bool:
		return bool(v), true
	case types.String:
		return string(v), true
	case types.Int:
		return json.Number(strconv.FormatInt(int64(v), 10)), true
	case types.Uint:
		return json.Number(strconv.FormatUint(uint64(v), 10)), true
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, false
		}
		b, err := json.Marshal(float64(v))
		return json.Number(b), err == nil
	case traits.Mapper:
		if raw, ok := v.Value().(map[string]any); ok {
			return raw, true
		}
		return mapToJSON(v)
	case traits.Lister:
		if raw, ok := v.Value().([]any); ok {
			return raw, true
		}
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			e, ok := toJSON(it.Next())
			if !ok {
				return nil, false
			}
			list = append(list, e)
		}
		return list, true
	}
	return nil, false
}

func mapToJSON(v traits.Mapper) (any, bool) {
	m := make(map[string]any)
	for it := v.Iterator(); it.HasNext() == types.True; {
		k := it.Next()
		key, isText := k.(types.String)
		e, ok := toJSON(v.Get(k))
		if !isText || !ok {
			return nil, false
		}
		m[string(key)] = e
	}
	return m, true
}
