//! The table.

pub(crate) mod bodies;
pub(crate) mod flight;
pub(crate) mod header;
pub(crate) mod inside;
pub(crate) mod limits;
pub(crate) mod loss;
pub(crate) mod meanwhile;
pub(crate) mod once;
pub(crate) mod policy;
pub(crate) mod reasons;
pub(crate) mod recall;
pub(crate) mod replay;
pub(crate) mod reuse;
pub(crate) mod storing;

/// Runs the table over a store: its name, its `Subject`, and the arguments of `tokio::test`.
macro_rules! idempotency {
    ($store:ident, $subject:ty, $args:tt) => {
        mod $store {
            $crate::suite::idempotency!(@tests $subject, $args, header:
                a_string_and_a_bare_value_are_the_same_key,
                strict_takes_the_drafts_form_only,
                a_malformed_key_is_refused_before_the_store_is_asked,
                a_request_without_a_key_passes_or_is_refused_if_one_is_required,
                a_request_out_of_scope_needs_no_key,
                post_and_patch_are_handled_by_default_and_other_methods_by_a_setter,
                refusals_contain_the_key_if_it_was_readable
            );
            $crate::suite::idempotency!(@tests $subject, $args, replay:
                status_body_and_headers_are_replayed,
                headers_of_one_exchange_are_not_replayed,
                a_replay_asks_the_store_once,
                another_replica_gives_the_same_answer,
                two_tenants_do_not_see_each_others_answers,
                a_scope_for_everybody_is_said_by_name,
                after_its_retention_an_answer_is_forgotten,
                an_empty_answer_is_an_answer
            );
            $crate::suite::idempotency!(@tests $subject, $args, meanwhile:
                a_duplicate_waits_and_gets_the_first_answer,
                local_duplicates_do_not_ask_the_store,
                waiting_replicas_are_all_woken,
                fifty_duplicates_over_two_replicas_run_once,
                after_the_wait_limit_a_duplicate_gets_409_and_the_first_goes_on,
                without_waiting_a_duplicate_gets_409_at_once,
                without_waiting_concurrent_retries_get_the_kept_answer,
                a_client_that_goes_away_does_not_cancel_the_handler,
                a_waiting_client_that_goes_away_changes_nothing,
                a_panic_is_kept_as_a_500_and_waiting_duplicates_get_the_500
            );
            $crate::suite::idempotency!(@tests $subject, $args, reuse:
                another_request_with_the_key_is_422_after_the_first,
                another_request_with_the_key_is_422_while_the_first_runs,
                every_part_of_a_request_counts,
                an_answer_that_was_not_kept_leaves_the_key_to_another_request,
                a_request_that_does_not_wait_does_not_decide_for_another_request
            );
            $crate::suite::idempotency!(@tests $subject, $args, policy:
                answers_of_handlers_that_may_have_acted_are_kept,
                answers_that_say_that_nothing_was_done_are_not_kept,
                a_policy_of_the_program_decides,
                a_handler_overrules_the_policy_either_way,
                a_policy_keeps_successes_only,
                only_the_handler_frees_the_key_of_its_transaction,
                a_handler_that_was_timed_out_is_not_run_again,
                after_an_answer_that_is_not_kept_the_next_waiter_runs
            );
            $crate::suite::idempotency!(@tests $subject, $args, reasons:
                a_refusal_is_never_kept_even_with_status_200,
                a_lock_lost_inside_is_a_tombstone,
                no_extension_overrules_the_refusal_of_a_layer,
                a_lock_lost_before_the_handler_begins_frees_the_key,
                an_error_that_is_rendered_as_a_success_is_not_run_again,
                an_error_of_the_locks_that_a_handler_returns_is_its_answer,
                an_error_of_the_locks_after_the_money_has_moved_does_not_free_the_key,
                a_handler_that_has_done_nothing_says_so,
                the_refusal_of_a_service_that_the_handler_calls_is_its_own_answer,
                a_refusal_inside_of_two_layers_frees_the_keys_of_both,
                a_policy_decides_about_errors_of_the_inner_service,
                a_panic_after_the_answer_is_a_tombstone,
                a_replayed_panic_is_rendered_like_all_refusals,
                an_error_of_the_inner_service_is_a_tombstone,
                an_inner_service_that_does_not_become_ready_frees_the_key,
                a_claim_that_is_lost_before_the_beginning_is_not_begun
            );
            $crate::suite::idempotency!(@tests $subject, $args, bodies:
                a_request_over_the_limit_is_413_without_a_claim,
                a_body_that_breaks_off_is_400_without_a_claim,
                a_response_over_the_limit_is_delivered_and_not_run_again,
                a_stream_is_delayed_by_the_read_limit_and_not_run_again,
                server_sent_events_are_not_held_back,
                a_stream_that_ends_at_once_is_kept,
                a_body_in_several_frames_is_awaited_and_kept,
                two_hundred_frames_are_kept,
                a_response_that_breaks_off_is_not_run_again,
                a_cut_answer_looks_cut,
                trailers_are_kept_and_replayed,
                a_grpc_answer_is_kept_by_its_grpc_status,
                a_policy_sees_the_trailers_of_a_grpc_answer,
                a_switch_of_protocols_is_not_replayed
            );
            $crate::suite::idempotency!(@tests $subject, $args, loss:
                an_answer_is_stored_late_if_the_key_is_free,
                an_answer_is_stored_late_if_the_key_is_only_queued_for,
                an_answer_is_not_stored_over_another,
                a_late_answer_does_not_disturb_a_running_request,
                after_a_crash_a_retry_runs_once_the_lease_has_passed,
                a_lost_claim_is_not_freed_while_its_handler_runs,
                a_lost_claim_is_freed_when_its_answer_is_not_kept,
                a_handler_cannot_release_its_claim
            );
            $crate::suite::idempotency!(@tests $subject, $args, storing:
                a_store_that_is_down_at_the_claim_is_503,
                a_store_that_is_down_after_the_handler_delays_the_answer_by_the_store_limit_only,
                a_store_that_comes_back_in_time_gets_the_answer,
                waiting_duplicates_get_an_answer_that_was_not_stored,
                a_key_whose_answer_was_not_stored_is_not_free_at_once
            );
            $crate::suite::idempotency!(@tests $subject, $args, limits:
                a_scope_that_is_full_is_429_and_others_are_not,
                an_upload_that_never_ends_keeps_no_request_out,
                all_layers_of_a_process_count_together,
                a_place_is_free_again_after_an_answer_a_refusal_and_a_panic,
                a_damaged_record_is_an_error_and_not_a_second_run,
                nothing_is_left_but_the_record
            );
            $crate::suite::idempotency!(@tests $subject, $args, inside:
                a_handler_can_extract_the_key_and_the_guard_by_its_name,
                an_optional_key_is_none_for_a_request_without_a_key,
                closing_waits_for_handlers_whose_clients_have_gone,
                closing_turns_duplicates_away_and_the_answer_is_kept,
                authentication_idempotency_and_lock_work_together_in_this_order,
                a_lock_that_was_skipped_is_not_replaced_by_the_claim,
                two_nested_layers_act_as_one,
                two_layers_on_two_routes_share_their_keys
            );
            $crate::suite::idempotency!(@tests $subject, $args, recall:
                what_the_store_forgot_is_recalled_and_recorded,
                what_was_recalled_is_only_for_the_same_request,
                a_tombstone_is_answered_by_the_program_if_it_knows,
                a_question_that_fails_lets_no_handler_run,
                a_question_that_panics_or_is_cancelled_frees_the_key,
                an_answer_that_is_too_large_to_be_recorded_is_recalled_each_time,
                an_error_that_frees_the_key_does_not_hide_what_was_committed
            );
            $crate::suite::idempotency!(@tests $subject, $args, flight:
                equal_requests_at_once_run_once_in_the_whole_fleet,
                a_later_request_runs_again,
                errors_are_shared_with_waiting_requests_and_never_kept,
                an_answer_that_is_kept_serves_later_requests,
                other_keys_and_methods_are_other_flights,
                waiting_requests_get_the_answer_although_the_first_client_goes_away,
                an_answer_that_cannot_be_shared_lets_the_others_run,
                an_answer_to_one_clients_headers_is_not_shared,
                without_its_store_a_request_runs_by_itself,
                a_request_that_waits_too_long_runs_by_itself,
                a_stampede_runs_once,
                many_flights_in_a_row_run_once_each,
                the_next_request_waits_in_line_if_the_one_that_did_goes_away,
                an_answer_that_is_marked_as_private_is_not_shared,
                the_copy_of_a_refusal_is_rendered_as_a_refusal,
                copies_have_the_trailers_of_the_answer
            );
            $crate::suite::idempotency!(@tests $subject, $args, once:
                work_is_done_once_and_its_result_is_kept,
                a_second_call_waits_for_the_result,
                work_that_fails_is_done_again,
                the_work_cannot_release_its_claim,
                nothing_text_and_bytes_can_be_kept,
                work_that_is_dropped_frees_the_key,
                a_result_is_stored_although_its_caller_goes_away,
                a_result_without_bytes_is_not_made_twice,
                a_result_that_panics_is_not_made_twice,
                a_kept_result_that_cannot_be_read_is_an_error,
                the_wait_limit_counts,
                a_call_has_its_own_wait_limit,
                the_work_can_watch_its_lease,
                the_error_names_the_process_that_began_first,
                every_valid_key_can_be_used,
                a_result_that_is_forgotten_at_once_is_not_stored
            );
        }
    };
    (@tests $subject:ty, $args:tt, $topic:ident: $($test:ident),+) => {
        mod $topic {
            $(
                #[tokio::test $args]
                async fn $test() {
                    $crate::suite::$topic::$test(<$subject as $crate::subject::Subject>::start().await).await;
                }
            )+
        }
    };
}

pub(crate) use idempotency;
