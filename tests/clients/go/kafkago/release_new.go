//go:build new

package main

import (
	"errors"

	"github.com/segmentio/kafka-go"
	"mainstem/lines"
)

var (
	more = map[string]lines.Operation{
		"set_config": setConfig, "replace_configs": replaceConfigs, "configs": configs, "groups": groups,
		"group_state": groupState, "delete_group": deleteGroup,
	}
	lacks = []string{"cluster id", "empty keys", "empty values", "empty headers"}
)

func setConfig(r *lines.Request) (any, error) {
	found, err := client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: r.Topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{
				{Name: r.Name, Value: r.Value, ConfigOperation: kafka.ConfigOperationSet},
			},
		}},
	})
	if err != nil {
		return nil, err
	}
	return nil, found.Resources[0].Error
}

func replaceConfigs(r *lines.Request) (any, error) {
	found, err := client.AlterConfigs(ctx, &kafka.AlterConfigsRequest{
		Resources: []kafka.AlterConfigRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: r.Topic,
			Configs: []kafka.AlterConfigRequestConfig{{Name: r.Name, Value: r.Value}},
		}},
	})
	if err != nil {
		return nil, err
	}
	for _, failed := range found.Errors {
		err = errors.Join(err, failed)
	}
	return nil, err
}

func configs(r *lines.Request) (any, error) {
	found, err := client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: r.Topic}},
	})
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, entry := range found.Resources[0].ConfigEntries {
		values[entry.ConfigName] = entry.ConfigValue
	}
	return values, found.Resources[0].Error
}

func groups(*lines.Request) (any, error) {
	found, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, group := range found.Groups {
		names = append(names, group.GroupID)
	}
	return names, found.Error
}

func groupState(r *lines.Request) (any, error) {
	found, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{r.Group}})
	if err != nil {
		return nil, err
	}
	return found.Groups[0].GroupState, found.Groups[0].Error
}

func deleteGroup(r *lines.Request) (any, error) {
	found, err := client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{r.Group}})
	if err != nil {
		return nil, err
	}
	return nil, found.Errors[r.Group]
}
