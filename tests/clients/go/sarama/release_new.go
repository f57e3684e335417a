//go:build new

package main

import "github.com/IBM/sarama"

var version = sarama.MaxVersion

var lacks = []string{"cluster id", "none so late", "null headers"}
