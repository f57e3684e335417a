//go:build old

package main

// It sets the time of every record itself.
var lacks = []string{"features from 0", "times"}
