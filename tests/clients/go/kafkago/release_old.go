//go:build old

package main

import "mainstem/lines"

var (
	more  = map[string]lines.Operation{}
	lacks = []string{"cluster id", "empty keys", "empty values", "empty headers"}
)
