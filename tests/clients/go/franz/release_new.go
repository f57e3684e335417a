//go:build new

package main

var lacks = []string{"features from 0"}
